"""The official client against FastServe: `.venv/bin/python docs/examples/openai_client.py http://HOST:PORT/v1`."""

import sys

from openai import OpenAI


def main(base_url: str) -> None:
    """A whole completion, a streamed one, and a conversation."""
    # FastServe asks for no key; the client wants one.
    with OpenAI(base_url=base_url, api_key="none") as client:
        model = client.models.list().data[0].id

        whole = client.completions.create(model=model, prompt="def main(", max_tokens=16, seed=1)
        print(whole.choices[0].text)

        for chunk in client.completions.create(model=model, prompt="def main(", max_tokens=16, seed=1, stream=True):
            print(chunk.choices[0].text, end="", flush=True)
        print()

        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": "What does this module do?"}],
            max_completion_tokens=16,
            # What OpenAI's API lacks goes into extra_body.
            extra_body={"top_k": 40, "repetition_penalty": 1.1},
        )
        print(answer.choices[0].message.content, answer.usage)


if __name__ == "__main__":
    main(sys.argv[1])
