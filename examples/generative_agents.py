"""Generative agents: villagers who share a world and remember. Each has a state of its own; all begin with the same world."""
import ramet
from ramet.frontend.report import print_saved

WORLD = """The village of Larkhill has a mill, a market and a school. It is Monday morning and it rains. Everybody in the village knows
that the old bridge is closed and that the fair is on Friday. Villagers speak in one short sentence.

"""
PEOPLE = {"Ada": "the miller, who worries about the bridge", "Bo": "the teacher, who plans the fair", "Cy": "a trader, new in the village"}


@ramet.function
def day(s, rounds=2):
    s += WORLD
    people = s.fork(names=list(PEOPLE))
    for name, who in PEOPLE.items():
        people[name].__iadd__(f"{name} is {who}.\n")
    said = []
    for _ in range(rounds):
        for state, name in zip(people, PEOPLE):
            state += f"{name} says:" + ramet.gen("line", max_tokens=20, stop="\n", temperature=0.7, seed=1) + "\n"
        lines = {name: state["line"] for state, name in zip(people, PEOPLE)}  # all three were generated side by side
        for state, name in zip(people, PEOPLE):
            state += "".join(f"{name} hears {other}:{line}\n" for other, line in lines.items() if other != name)
        said.append(lines)
    moods = {}
    for state, name in zip(people, PEOPLE):
        state += f"Now {name} is" + ramet.select("mood", [" glad", " worried", " bored"])
    for state, name in zip(people, PEOPLE):
        moods[name] = state["mood"].strip()
    return said, moods


if __name__ == "__main__":
    state = day.run()
    said, moods = state.ret_value
    for lines in said:
        print(*(f"{name}:{line}" for name, line in lines.items()), sep="\n")
    print("moods:", moods)
    print_saved(state)
