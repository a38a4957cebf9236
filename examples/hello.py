"""The smallest program: one question, one answer, streamed."""
import ramet
from ramet.frontend.report import print_saved


@ramet.function
def hello(s, question="What is a plant?"):
    s += ramet.system("You answer in one short sentence.")
    s += ramet.user(question)
    s += ramet.assistant(ramet.gen("answer", max_tokens=40, temperature=0))


if __name__ == "__main__":
    state = hello.run(stream=True)
    for piece in state.text_iter("answer"):
        print(piece, end="", flush=True)
    print()
    print_saved(state)
