"""LangChain against FastServe: `.venv/bin/python docs/examples/langchain_client.py http://HOST:PORT/v1 MODEL`.

Needs langchain-openai.
"""

import sys

from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI


def main(base_url: str, model: str) -> None:
    """A chain of prompt and model, whole and as a stream."""
    chat = ChatOpenAI(base_url=base_url, api_key="none", model=model, max_tokens=16, seed=1, temperature=0.7)
    prompt = ChatPromptTemplate.from_messages([("system", "You know {language}."), ("user", "{question}")])
    chain = prompt | chat
    question = {"language": "Python", "question": "What does this module do?"}

    answer = chain.invoke(question)
    print(answer.content, answer.usage_metadata)
    for chunk in chain.stream(question):
        print(chunk.content, end="", flush=True)
    print()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
