"""Checks the tools of a request, as far as that needs no model."""

from services.gateway.guides.guide_checker import path_text
from services.gateway.openai.error_kinds import RefusedBodyError
from services.gateway.openai.given_guides import guides_in
from services.gateway.openai.requests import ChatBody, FunctionTool, NamedToolChoice
from services.gateway.tools.schema_shape import shape_fault


def check_tools(body: ChatBody) -> None:
    """Raises RefusedBodyError with the client's own path."""
    names: set[str] = set()
    for place, tool in enumerate(body.tools or ()):
        path = f"tools[{place}].function"
        if tool.function.name in names:
            raise _invalid(f"{path}.name", "is the name of an earlier tool too")
        names.add(tool.function.name)
        _check_parameters(f"{path}.parameters", tool.function)
    choice = body.tool_choice
    if isinstance(choice, NamedToolChoice):
        if choice.function.name not in names:
            raise _invalid("tool_choice.function.name", "is not among tools")
    elif choice == "required" and not names:
        raise _invalid("tool_choice", "needs tools")
    guides = guides_in(body)
    if names and choice != "none" and guides:
        raise _invalid(guides[0][1], "must not be given together with tools, unless tool_choice is none")


def _check_parameters(path: str, function: FunctionTool) -> None:
    if function.parameters is None:
        return
    fault = shape_fault(function.parameters)
    if fault is not None:
        raise _invalid(path + path_text(fault.path), fault.reason)
    if function.parameters.get("type", "object") != "object":
        raise _invalid(f"{path}.type", "must be object: arguments have names")


def _invalid(param: str, message: str) -> RefusedBodyError:
    return RefusedBodyError(param, message, "invalid_value")
