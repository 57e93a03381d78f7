"""Log-probabilities of a group's sequences from one pass over their prefix tree.

The trajectories of a group begin with the same prompt, and many share more. Here every distinct prefix is computed
once: the sequences are folded into a tree, its nodes are laid out as one row, each node attends to its ancestors and
itself, and its position is its depth. The numbers are those of separate rows (up to float32 rounding), gradients
included, since a shared node receives the sum of what its copies would have received. Eight completions of 40 tokens
after a prompt of 100 are 420 nodes instead of 1,120 tokens. The head projects only the nodes before a scored token.

Covered: decoder-only models whose layers all attend to everything before (see `supports`), one device. Not covered:
sliding windows, recurrent layers, mixture-of-experts losses: those take the trainer's own padded pass.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

FULL_ATTENTION = frozenset({"llama", "qwen2", "qwen3"})
MAX_NODES = 1024  # of one forward; attention is quadratic in it and activations stay in memory until the backward


def supports(model: Any) -> bool:
    """Whether a tree mask means the same as separate rows for this model."""
    config = model.config
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    attention = getattr(config, "_attn_implementation", None)
    return config.model_type in FULL_ATTENTION and kinds == {"full_attention"} and attention in ("sdpa", "eager")


@dataclass
class PrefixTree:
    """Nodes in the order of their creation, so that a parent stands before its children. A root's parent is -1."""

    ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    _edges: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, row: list[int]) -> list[int]:
        """Fold a sequence in; returns the node of each of its tokens."""
        path, parent = [], -1
        for depth, token in enumerate(row):
            node = self._edges.get((parent, token))
            if node is None:
                node = len(self.ids)
                self._edges[parent, token] = node
                self.ids.append(token)
                self.parents.append(parent)
                self.depths.append(depth)
            path.append(node)
            parent = node
        return path

    def visible(self) -> torch.Tensor:
        """True where the row's node may attend to the column's: ancestors and itself. Shape (nodes, nodes)."""
        mask = torch.zeros(len(self.ids), len(self.ids), dtype=torch.bool)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] = mask[parent]
            mask[node, node] = True
        return mask


def score(
    causal_lm: Any, rows: list[list[int]], scored: list[list[int]], temperature: float
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Log-probability and entropy (nats, entropy without gradient) at the `scored` positions of each row.

    causal_lm: an unwrapped model with `.model` and an output head. scored[i]: increasing positions >= 1 in rows[i].
    Returns two lists of tensors, shape (len(scored[i]),).
    """
    tree = PrefixTree()
    paths = [tree.add(row) for row in rows]
    if len(tree.ids) > MAX_NODES and len(rows) > 1:
        half = len(rows) // 2
        first = score(causal_lm, rows[:half], scored[:half], temperature)
        second = score(causal_lm, rows[half:], scored[half:], temperature)
        return first[0] + second[0], first[1] + second[1]
    targets = sorted({path[at] for path, places in zip(paths, scored, strict=True) for at in places})
    if not targets:
        return [torch.zeros(0) for _ in rows], [torch.zeros(0) for _ in rows]
    logps, entropies = _score_nodes(causal_lm, tree, targets, temperature)
    slot = {node: place for place, node in enumerate(targets)}
    picks = [
        torch.tensor([slot[path[at]] for at in places], dtype=torch.long, device=logps.device)
        for path, places in zip(paths, scored, strict=True)
    ]
    return [logps[pick] for pick in picks], [entropies[pick] for pick in picks]


def _score_nodes(
    causal_lm: Any, tree: PrefixTree, targets: list[int], temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    device = causal_lm.device
    hidden = _hidden(causal_lm, tree)  # (nodes, width)
    heads = sorted({tree.parents[node] for node in targets})
    logits = causal_lm.get_output_embeddings()(hidden[torch.tensor(heads, device=device)])
    log_p = torch.log_softmax(logits.float() / temperature, dim=-1)  # (heads, vocabulary)
    with torch.no_grad():
        entropy = torch.special.entr(log_p.detach().exp()).sum(-1)  # (heads,)
    at = {node: place for place, node in enumerate(heads)}
    before = torch.tensor([at[tree.parents[node]] for node in targets], device=device)
    tokens = torch.tensor([tree.ids[node] for node in targets], device=device)
    return log_p[before, tokens], entropy[before]


def _hidden(causal_lm: Any, tree: PrefixTree) -> torch.Tensor:
    device, dtype = causal_lm.device, causal_lm.dtype
    mask = torch.zeros(len(tree.ids), len(tree.ids), dtype=dtype)
    mask.masked_fill_(~tree.visible(), torch.finfo(dtype).min)
    output = causal_lm.model(
        input_ids=torch.tensor([tree.ids], device=device),
        position_ids=torch.tensor([tree.depths], device=device),
        attention_mask=mask[None, None].to(device),
        use_cache=False,
    )
    states: torch.Tensor = output.last_hidden_state[0]
    return states
