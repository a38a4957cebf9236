"""A ReAct agent: thoughts end at a newline, actions obey a regex, so that every call parses."""
import re

import ramet
from ramet.frontend.report import print_saved

ACTION = r"(add|multiply)\[\d{1,4}, \d{1,4}\]|finish\[\d{1,8}\]"
TOOLS = {"add": lambda a, b: a + b, "multiply": lambda a, b: a * b}
RULES = """Solve the task by turns of Thought, Action and Observation. Actions: add[a, b], multiply[a, b], finish[result].

Task: what is 3 times 4?
Thought: I multiply 3 by 4.
Action: multiply[3, 4]
Observation: 12
Thought: The result is 12.
Action: finish[12]

"""


@ramet.function
def agent(s, task, steps=4):
    s += RULES + f"Task: {task}\n"
    for i in range(steps):
        s += "Thought:" + ramet.gen(f"thought{i}", max_tokens=24, stop="\n", temperature=0) + "\nAction: "
        s += ramet.gen(f"action{i}", regex=ACTION, max_tokens=24, temperature=0)
        name, arguments = re.fullmatch(r"(\w+)\[(.*)\]", s[f"action{i}"]).groups()
        numbers = [int(n) for n in arguments.split(",")]
        if name == "finish":
            return numbers[0]
        s += f"\nObservation: {TOOLS[name](*numbers)}\n"
    return None


if __name__ == "__main__":
    state = agent.run(task="what is 12 times 5?")
    print(state.text().removeprefix(RULES))
    print("\nresult:", state.ret_value)
    print_saved(state)
