"""lm-eval's `local-completions` against a server of its own, without any hub.

    python -m venv /tmp/lmeval && /tmp/lmeval/bin/pip install "lm-eval[api]"    # beside forerun and its extra `serve`
    PYTHONPATH=src:. /tmp/lmeval/bin/python -m tests.server.lm_eval_run                        # a tiny random model
    PYTHONPATH=src:. /tmp/lmeval/bin/python -m tests.server.lm_eval_run --target smollm2-135m  # a real one, greedy

Three tasks of a few lines each, written as lm-eval has them: multiple choice (log probabilities of the answers: `echo`,
`logprobs` and `max_tokens: 1`), perplexity (the same of whole texts), and free answers (`generate_until`). It fails
unless every number that lm-eval was given is what `LLM.generate` says of the same tokens without speculation, with one
request at a time, several prompts of one request, and several requests at once.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

from tests.models.tiny_gguf import write_tiny_gguf
from tests.server.faults import COMPLETIONS, Process

from forerun.loading import load

QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Paris", "Rome", "a river", "blue"], "answer": 0},
    {"question": "Two and two is", "choices": ["seven", "four", "none"], "answer": 1},
    {"question": "The sun rises in the", "choices": ["west", "north", "east"], "answer": 2},
    {"question": "Water is made of hydrogen and", "choices": ["oxygen", "gold"], "answer": 0},
    {"question": "A year has twelve", "choices": ["days", "months", "hours", "moons and more"], "answer": 1},
]
TASKS = {
    "choices": {
        "output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_target": "answer",
        "doc_to_choice": "choices", "target_delimiter": " ", "metric_list": [{"metric": "acc"}],
    },
    "answers": {
        "output_type": "generate_until", "doc_to_text": "Question: {{question}}\nAnswer:",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n", "Question:"], "max_gen_toks": 24, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    "texts": {
        "output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{question}} {{choices[answer]}}.",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}  # fmt: skip


def write_tasks(folder: Path) -> None:
    """The tasks, and the data that all of them read."""
    data = folder / "questions.json"
    data.write_text("\n".join(json.dumps(one) for one in QUESTIONS), encoding="utf-8")
    for name, settings in TASKS.items():
        task = {
            "task": f"forerun_{name}", "dataset_path": "json", "test_split": "test", "num_fewshot": 0,
            "dataset_kwargs": {"data_files": {"test": str(data)}}, **settings,
        }  # fmt: skip
        (folder / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")  # YAML reads JSON


def evaluate(url: str, folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    """What lm-eval finds, with all it asked and was answered."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    given = {"model": name, "base_url": url + COMPLETIONS, "tokenizer_backend": "remote", "timeout": 900, **settings}
    return simple_evaluate(
        model="local-completions", model_args=given, tasks=[f"forerun_{task}" for task in TASKS],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False), bootstrap_iters=0,
    )  # fmt: skip


def check(found: dict[str, Any], llm: Any) -> int:
    """Compare every number with plain decoding's; returns how many there were."""
    num = 0
    for sample in found["samples"]["forerun_choices"]:
        for (context, words), ((logprob, is_greedy),) in zip(_pairs(sample), sample["resps"], strict=True):
            expected, greedy = score(llm, context, words)
            assert abs(float(logprob) - expected) < 1e-3, (context, words, logprob, expected)
            assert bool(is_greedy) == greedy, (context, words)
            num += 1
    for sample in found["samples"]["forerun_answers"]:
        (prompt, settings), ((text,),) = _pairs(sample)[0], sample["resps"]
        stops = [*settings["until"], *_end_of_text(llm)]
        assert text == llm.generate(prompt, temperature=0, max_tokens=24, stop=tuple(stops)).text, prompt
        num += 1
    for sample in found["samples"]["forerun_texts"]:
        expected, _ = score(llm, _first_token(llm), sample["arguments"][0][0])
        assert abs(float(sample["resps"][0][0]) - expected) < 1e-3, (sample["resps"], expected)
        num += 1
    return num


def _pairs(sample: Any) -> list[tuple[str, Any]]:
    """(context, what was asked of it) of a sample's requests."""
    return [tuple(one) for one in sample["arguments"]]


def _end_of_text(llm: Any) -> list[str]:
    """lm-eval adds the text of the end of text to what ends an answer."""
    return [llm.tokenizer.parts.special_tokens["eos_token"]]


def _first_token(llm: Any) -> str:
    """What lm-eval puts before a text that has no context."""
    special = llm.tokenizer.parts.special_tokens
    return special.get("bos_token") or special["eos_token"]


def score(llm: Any, context: str, words: str) -> tuple[float, bool]:
    """(log probability of `words` after `context`, whether the target would have chosen them), tokens as lm-eval's."""
    encode = llm.tokenizer.encode
    start = encode(context, add_special=False)
    whole = encode(context + words, add_special=False)
    entries = llm.generate(whole, max_tokens=0, prompt_logprobs=1).prompt_logprobs[len(start) :]
    return sum(one.logprob for one in entries), all(one.logprob == one.top[0][1] for one in entries)


def main() -> None:
    """Serve, evaluate, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="a model's name or file (default: a tiny random one, with a draft)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tasks(folder)
        if args.target:
            target, more = args.target, ("--drafter", "suffix")
        else:
            target = str(write_tiny_gguf(folder / "target.gguf", seed=1, context_length=512))
            draft = write_tiny_gguf(folder / "draft.gguf", seed=1, perturb=0.1, context_length=512)
            more = ("--draft", str(draft), "--k", "3")
        with load(target) as llm, Process(target, *more, "--model-name", "mine") as server:
            for settings in ({}, {"batch_size": 4}, {"num_concurrent": 4}):
                found = evaluate(server.url, folder, "mine", **settings)
                num = check(found, llm)
                results = {task: {k: v for k, v in one.items() if "," in k} for task, one in found["results"].items()}
                print(settings or "one at a time", f"{num} numbers equal", results, flush=True)
            server.stop()
            assert server.ended() == 0, server.lines[-5:]


if __name__ == "__main__":
    main()
