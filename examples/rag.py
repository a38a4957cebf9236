"""Questions about files: SQLite's full-text search finds passages, the model answers from them.

Questions that find the same passages share their keys and values, because the passages come first.
"""
import re
import sqlite3
import sys
from pathlib import Path

import ramet
from ramet.frontend.report import print_saved

ROOT = Path(__file__).resolve().parent.parent


def index(files):
    """An in-memory full-text index of paragraphs."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE passages USING fts5(file, body, tokenize='porter')")
    for file in files:
        for paragraph in re.split(r"\n\s*\n", file.read_text(encoding="utf-8")):
            if 40 < len(paragraph) < 1500:
                db.execute("INSERT INTO passages VALUES (?, ?)", (file.name, paragraph.strip()))
    return db


def search(db, question, k=2):
    words = " OR ".join(f'"{w}"' for w in re.findall(r"\w{3,}", question))
    found = db.execute("SELECT file, body FROM passages WHERE passages MATCH ? ORDER BY rank LIMIT ?", (words, k)).fetchall()
    return sorted(found)  # the same passages in the same order share one prefix


@ramet.function
def answer(s, passages, question):
    text = "\n\n".join(f"[{file}] {body}" for file, body in passages)
    s += ramet.system("You answer from the passages alone, in one sentence.")
    s += ramet.user(f"Passages:\n{text}\n\nQuestion: {question}")
    s += ramet.assistant(ramet.gen("answer", max_tokens=48, temperature=0, stop="\n"))


if __name__ == "__main__":
    db = index([ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
    questions = sys.argv[1:] or ["Which two commands set everything up?", "Which commands run the demo and the tests?"]
    states = []
    for question in questions:
        passages = search(db, question)
        state = answer.run(passages=passages, question=question)
        states.append(state)
        totals = state.run.totals
        print(f"{question}\n  {state['answer']}\n  from {', '.join(file for file, _ in passages)};", end=" ")
        print(f"{totals['cached_tokens']} of {totals['prompt_tokens']} prompt tokens were cached")
    print_saved(*states)
