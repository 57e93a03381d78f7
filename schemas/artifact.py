"""A file or folder that a stage made, named by the SHA-256 of its manifest and tracked by DVC."""

from __future__ import annotations

from pydantic import Field

from schemas.base import Closed, Digest, Frozen


class ManifestEntry(Frozen):
    path: str = Field(description="relative POSIX path inside the artifact")
    bytes: int = Field(ge=0)
    sha256: Digest


class Manifest(Frozen):
    """Sorted by path. Its digest is the artifact's name; it is checked whenever the content is used."""

    entries: list[ManifestEntry]


class ArtifactRef(Closed):
    """`digest` is the content's identity, not one computed from this record."""

    name: str = Field(description="what it is to its stage, e.g. tasks, checkpoint, attempts")
    path: str = Field(description="relative to the workspace; ends in the first 12 digits of the digest")
    digest: Digest
    files: int = Field(ge=0)
    bytes: int = Field(ge=0)
