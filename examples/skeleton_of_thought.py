"""Skeleton of thought: an outline first, then all its points at once, each in a branch that shares the outline."""
import ramet
from ramet.frontend.report import print_saved


@ramet.function
def article(s, topic, points=4):
    s += ramet.system("You write short and plain.") + ramet.user(f"List {points} points about {topic}, a few words each.")
    with s.assistant():
        for i in range(points):
            s += f"{i + 1}." + ramet.gen(f"point{i}", max_tokens=8, stop="\n", temperature=0) + "\n"
    forks = s.fork(points)
    forks += [
        ramet.user(f"Write one sentence about point {i + 1}.") + ramet.assistant(ramet.gen("text", max_tokens=24, stop="\n", temperature=0))
        for i in range(points)
    ]
    forks.join()
    s += ramet.user("All points:\n" + "\n".join(s["text"]) + "\nSum up in one sentence.")
    s += ramet.assistant(ramet.gen("summary", max_tokens=24, stop="\n", temperature=0))


if __name__ == "__main__":
    state = article.run("growing tomatoes")
    for i, text in enumerate(state["text"]):
        print(f"{i + 1}.{state[f'point{i}']}: {text}")
    print("in short:", state["summary"])
    print_saved(state)
