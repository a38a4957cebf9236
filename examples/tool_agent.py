"""An agent with tools: the model can only write calls that parse, and each result goes into the conversation."""
import ramet
from ramet.frontend.report import print_saved


def add(a: int, b: int) -> int:
    "Adds two whole numbers."
    return a + b


def multiply(a: int, b: int) -> int:
    "Multiplies two whole numbers."
    return a * b


def answer(text: str) -> str:
    "Gives the final answer."
    return text


TOOLS = [add, multiply, answer]


@ramet.function
def agent(s, task, steps=3):
    s += ramet.system(ramet.describe(TOOLS)) + ramet.user(task)
    for i in range(steps):
        s += ramet.assistant(ramet.gen(f"call{i}", tools=TOOLS, max_tokens=64, temperature=0))
        result = s.call(f"call{i}")
        if s[f"call{i}"].name == "answer":
            break
    return result


if __name__ == "__main__":
    state = agent.run("What is 12 times 5?")
    for name in (n for n in ("call0", "call1", "call2") if n in state):
        print(state[name].name, dict(state[name].arguments))
    print("result:", state.ret_value)
    print_saved(state)
