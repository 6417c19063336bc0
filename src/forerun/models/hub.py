"""The Hugging Face Hub: what a repository holds, and which of it a name means. Nothing is downloaded here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from forerun.errors import FileFormatError, UnknownModelError, UnsupportedModelError
from forerun.models.gguf_shards import shard_names
from forerun.models.hub_errors import endpoint, hub_errors
from forerun.models.store import is_safe_relative

_SNAPSHOT = re.compile(
    r"[^/]+\.(safetensors|json|jinja)|tokenizer[^/]*\.(model|txt)|(vocab|merges)\.txt|(spiece|sentencepiece\.bpe)\.model"
    r"|[^/]+\.tiktoken|additional_chat_templates/[^/]+\.jinja"
)


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository. `sha256` is known for large files, `blob` (git's own sha1) for small ones."""

    name: str
    size: int | None
    sha256: str | None
    blob: str | None


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository at one commit."""

    name: str
    revision: str
    licence: str | None
    files: tuple[RemoteFile, ...]

    def file(self, name: str) -> RemoteFile:
        """The file called `name`; UnknownModelError lists what there is."""
        for item in self.files:
            if item.name == name:
                return item
        raise UnknownModelError(
            f"the repository {self.name} has no file {name!r}",
            f"it has {_listing(self.gguf_models) or 'no .gguf file'}",
            f"name one of them as {self.name}:FILE"
            if self.gguf_models
            else f"use {self.name} for the whole repository",
        )

    @property
    def gguf_models(self) -> tuple[str, ...]:
        """Every GGUF model by its file, a split one once, by the name of its first shard."""
        names = [item.name for item in self.files if item.name.lower().endswith(".gguf")]
        return tuple(dict.fromkeys((full_shard_names(name) or (name,))[0] for name in names))

    def snapshot(self) -> tuple[RemoteFile, ...]:
        """The files of a transformers directory: safetensors, json, tokenizer and template files, never code.

        Subfolders hold other formats (onnx, original) and `consolidated*` repeats the weights, so both are left.
        """
        chosen = [item for item in self.files if _SNAPSHOT.fullmatch(item.name) and is_safe_relative(item.name)]
        weights = [item for item in chosen if item.name.endswith(".safetensors")]
        names = {item.name for item in chosen}
        if "config.json" not in names:
            raise FileFormatError(
                f"the repository {self.name} has neither a .gguf file nor a config.json",
                "it is not a model that forerun can read",
            )
        if not weights:
            raise UnsupportedModelError(
                f"the repository {self.name} has no .safetensors weights",
                "pickled weights can run code and are never loaded",
                "use a repository with safetensors or GGUF weights",
            )
        doubled = {item.name for item in weights if item.name.startswith("consolidated")}
        if len(doubled) < len(weights):
            chosen = [item for item in chosen if item.name not in doubled]
        return tuple(chosen)


def choose_gguf(repository: Repository, file: str | None) -> tuple[RemoteFile, ...] | None:
    """The files of the one GGUF model that `file` (None: the bare repository name) means: one, or all its shards in
    order; None if a snapshot is meant."""
    if file is not None:
        item = repository.file(file)
        if not file.lower().endswith(".gguf"):
            raise UnsupportedModelError(
                f"{file} is not a .gguf file",
                f"in {repository.name}",
                f"use {repository.name} for all its weights",
            )
        return _shards(repository, item.name)
    models = repository.gguf_models
    if len(models) == 1:
        return _shards(repository, models[0])
    if models:
        raise UnknownModelError(
            f"the repository {repository.name} has {len(models)} GGUF models",
            _listing(models),
            f"name one, such as {repository.name}:{models[0]}",
        )
    return None


def _shards(repository: Repository, name: str) -> tuple[RemoteFile, ...]:
    """The files of the model that `name` is, or is a shard of."""
    listed = {item.name: item for item in repository.files}
    names = full_shard_names(name) or (name,)
    missing = [one for one in names if one not in listed]
    if missing:
        raise UnknownModelError(
            f"the repository {repository.name} lacks {len(missing)} of the {len(names)} shards of {name}",
            f"the first is {missing[0]}",
            "choose another file",
        )
    return tuple(listed[one] for one in names)


def full_shard_names(name: str) -> tuple[str, ...]:
    """The paths of all shards of the model that the file `name` of a repository is a shard of; none if it is whole."""
    folder, slash, base = name.rpartition("/")
    return tuple(f"{folder}{slash}{one}" for one in shard_names(base))


def _listing(models: Sequence[str]) -> str:
    counts = {name: len(full_shard_names(name)) for name in models}
    return ", ".join(f"{name} ({count} shards)" if count else name for name, count in counts.items())


def inspect(name: str) -> Repository:
    """List repository `name` at its newest commit, with sizes, hashes and licence."""
    from huggingface_hub import HfApi, constants

    with hub_errors(name):
        info = HfApi(endpoint=endpoint()).model_info(name, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    licences = [tag.removeprefix("license:") for tag in info.tags or () if tag.startswith("license:")]
    files = tuple(
        RemoteFile(
            item.rfilename,
            item.lfs.size if item.lfs is not None else item.size,
            item.lfs.sha256 if item.lfs is not None else None,
            item.blob_id if item.lfs is None else None,
        )
        for item in info.siblings or ()
    )
    return Repository(name, info.sha or "main", licences[0] if licences else None, files)
