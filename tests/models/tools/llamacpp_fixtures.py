"""Make the fixtures that hold llama.cpp's token ids: tests/models/data/*.json.

Needs llama-cpp-python, which is no dependency of this project; give it an environment of its own with numpy and gguf:

    pip install llama-cpp-python gguf
    python tests/models/tools/llamacpp_fixtures.py real smollm2-135m=A.gguf qwen2.5-coder-0.5b=B.gguf ...
    python tests/models/tools/llamacpp_fixtures.py pre

`real` writes llamacpp_ids.json: the ids of the corpus for real vocabularies (files with equal ids are stored once).
`pre` writes pre_tokenizers.json: digests of the ids of the corpus for every pre-tokenizer name, on the probe
vocabulary. Made with llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
DATA = HERE.parent / "data"
sys.path.insert(0, str(ROOT))

from tests.models.probe_vocabulary import write_probe  # noqa: E402
from tests.models.tools.corpus import CONTROL, texts  # noqa: E402

APPROXIMATE = {"gpt-4o", "llama4", "minimax-m2", "tekken", "deepseek-llm", "deepseek-coder"}
"""llama.cpp's rule differs from the model's own outside ASCII."""


class Vocabulary:
    """llama.cpp's tokenizer of a GGUF file; no weights are read."""

    def __init__(self, path: Path | str) -> None:
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.model)

    def encode(self, text: str, parse_special: bool) -> list[int]:
        raw = text.encode()
        out = (llama_cpp.llama_token * (len(raw) + 16))()
        count = llama_cpp.llama_tokenize(self.vocabulary, raw, len(raw), out, len(out), True, parse_special)
        if count < 0:
            raise SystemExit(f"llama.cpp cannot tokenise {text!r}")
        return list(out[:count])

    def close(self) -> None:
        llama_cpp.llama_model_free(self.model)


def real(files: dict[str, str]) -> dict[str, Any]:
    corpus = texts(60)
    same: dict[str, list[str]] = {}
    for name, path in files.items():
        vocabulary = Vocabulary(path)
        ids = {
            "texts": [vocabulary.encode(text, True) for text in corpus],
            "control": [vocabulary.encode(text, True) for text in CONTROL],
            "control_as_text": [vocabulary.encode(text, False) for text in CONTROL],
        }
        vocabulary.close()
        same.setdefault(json.dumps(ids), []).append(name)
    groups = [{"models": names, **json.loads(ids)} for ids, names in same.items()]
    return {"texts": corpus, "control": CONTROL, "groups": groups}


def pre() -> dict[str, Any]:
    corpus = texts(120)
    same: dict[tuple[str, bool], list[str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name in _names():
            vocabulary = Vocabulary(write_probe(Path(directory) / "probe.gguf", name))
            chosen = [text for text in corpus if text.isascii()] if name in APPROXIMATE else corpus
            digests = "".join(digest(vocabulary.encode(text, False)) for text in chosen)
            vocabulary.close()
            same.setdefault((digests, name in APPROXIMATE), []).append(name)
    groups = [{"names": names, "ascii_only": narrow, "digests": all_} for (all_, narrow), names in same.items()]
    return {"texts": corpus, "groups": groups}


def digest(ids: list[int]) -> str:
    """Eight characters that stand for a list of ids."""
    return hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:8]


def _names() -> list[str]:
    """The names in our table, read from its file, so that forerun need not be installed beside llama.cpp."""
    stub = type(sys)("forerun.errors")
    stub.UnsupportedModelError = Exception  # type: ignore[attr-defined]
    sys.modules.setdefault("forerun", type(sys)("forerun"))
    sys.modules.setdefault("forerun.errors", stub)
    spec = importlib.util.spec_from_file_location("pretokenizers", ROOT / "src/forerun/models/pretokenizers.py")
    if spec is None or spec.loader is None:
        raise SystemExit("the table is not where it should be")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pretokenizers"] = module
    spec.loader.exec_module(module)
    return list(module.PRE_TOKENIZERS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["pre"]:
        made, target = pre(), DATA / "pre_tokenizers.json"
    elif sys.argv[1:2] == ["real"] and len(sys.argv) > 2:
        made, target = real(dict(argument.split("=", 1) for argument in sys.argv[2:])), DATA / "llamacpp_ids.json"
    else:
        raise SystemExit(__doc__)
    target.write_text(json.dumps(made, ensure_ascii=True, separators=(",", ":")) + "\n")
    print(f"{target}: {target.stat().st_size:,} bytes")
