"""The Hugging Face Hub: what a repository holds, and which of it a name means. Nothing is downloaded here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from forerun.errors import FileFormatError, UnknownModelError, UnsupportedModelError
from forerun.models.hub_errors import endpoint, hub_errors
from forerun.models.store import is_safe_relative

SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
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
            f"it has {_listing(self.ggufs) or 'no .gguf file'}",
            f"name one of them as {self.name}:FILE" if self.ggufs else f"use {self.name} for the whole repository",
        )

    @property
    def ggufs(self) -> tuple[RemoteFile, ...]:
        """Every .gguf file, shards included."""
        return tuple(item for item in self.files if item.name.lower().endswith(".gguf"))

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


def choose_gguf(repository: Repository, file: str | None) -> RemoteFile | None:
    """The one GGUF file that `file` (None: the bare repository name) means; None if a snapshot is meant."""
    if file is not None:
        item = repository.file(file)
        if not file.lower().endswith(".gguf"):
            raise UnsupportedModelError(
                f"{file} is not a .gguf file",
                f"in {repository.name}",
                f"use {repository.name} for all its weights",
            )
        refuse_shard(item.name)
        return item
    if len(repository.ggufs) == 1:
        refuse_shard(repository.ggufs[0].name)
        return repository.ggufs[0]
    whole = [item for item in repository.ggufs if not is_shard(item.name)]
    if repository.ggufs and not whole:
        refuse_shard(repository.ggufs[0].name)
    if whole:
        raise UnknownModelError(
            f"the repository {repository.name} has {len(repository.ggufs)} .gguf files",
            _listing(repository.ggufs),
            f"name one, such as {repository.name}:{whole[0].name}",
        )
    return None


def is_shard(name: str) -> bool:
    """Whether the name is that of one piece of a split GGUF (1 of 1 is whole)."""
    match = SHARD.search(name)
    return match is not None and int(match[2]) != 1


def refuse_shard(name: str) -> None:
    """Split GGUF files are not served yet: say so by name, before anything is fetched."""
    if is_shard(name):
        raise UnsupportedModelError(
            f"{name} is one piece of a split GGUF, which is not supported yet",
            "",
            "merge the pieces into one file (llama-gguf-split --merge), or use a smaller quantisation",
        )


def _listing(files: tuple[RemoteFile, ...]) -> str:
    return ", ".join(f"{item.name} (shard)" if is_shard(item.name) else item.name for item in files)


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
