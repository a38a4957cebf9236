"""A chat whose every turn reuses all turns before it: only what is new is computed."""
import sys

import ramet
from ramet.frontend.report import print_saved

TURNS = ["My name is Mina and I keep bees.", "What could I plant for them?", "And what is my name?"]


@ramet.function
def chat(s, turns):
    s += ramet.system("You are a friendly gardener. Answer in one or two short sentences.")
    for i, text in enumerate(turns):
        s += ramet.user(text) + ramet.assistant(ramet.gen(f"answer{i}", max_tokens=40, temperature=0))
        meta = s.get_meta_info(f"answer{i}")
        print(f"you:   {text}\nramet: {s[f'answer{i}']}")
        print(f"       ({meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens were cached)")


if __name__ == "__main__":
    print_saved(chat.run(turns=sys.argv[1:] or TURNS))
