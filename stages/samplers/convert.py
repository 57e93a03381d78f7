"""Model folders made here: a GGUF converted to float32 safetensors, and the tiny random Llama.

Not covered: architectures whose GGUF transformers cannot read; it says so itself.
"""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

from schemas.errors import InputError
from schemas.model import TinyModel
from stages.samplers.tokenization import quiet

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TINY_STD = 0.3  # of each weight: logits spread enough that a wrong cache or mask changes what is sampled


def convert_gguf(gguf: Path, folder: Path, name: str) -> None:
    """Dequantise into `folder`: weights, config, tokenizer, template. Minutes of CPU for large files; 50 s for 135M."""
    quiet()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    progress = io.StringIO()  # the conversion draws a bar of its own on stderr
    where: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(**where)
        with contextlib.redirect_stderr(progress):
            model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
    except (OSError, ValueError, KeyError, NotImplementedError) as error:
        reason = str(error).splitlines()[0][:200]
        raise InputError(
            f"model {name}: its GGUF cannot be converted: {reason}; name a model of a supported architecture"
        ) from error
    if not tokenizer.chat_template:
        raise InputError(f"model {name}: its GGUF has no chat template; name an instruction-tuned model")
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # The weights are plain float32 now; without this save_pretrained would write them as quantised ones.
    model.hf_quantizer, model.is_quantized = None, False
    model.config._name_or_path = name
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tiny(source: TinyModel, folder: Path) -> None:
    """A Llama of a few thousand parameters whose weights come from the seed alone."""
    quiet()
    import numpy as np
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _byte_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=source.hidden, intermediate_size=2 * source.hidden,
        num_hidden_layers=source.layers, num_attention_heads=4, num_key_value_heads=2,
        head_dim=max(2, source.hidden // 4 // 2 * 2), max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(torch.float32)
    generator = np.random.Generator(np.random.Philox(source.seed))
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            if not name.endswith("norm.weight"):
                values = generator.standard_normal(tuple(parameter.shape), dtype=np.float32) * TINY_STD
                parameter.copy_(torch.from_numpy(values))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _without_paths(folder / "tokenizer_config.json")


def _byte_tokenizer() -> Any:
    """Three special tokens and one token a byte; decode(encode(x)) == x for any text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate((*SPECIAL, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    fast: Any = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=SPECIAL[1], eos_token=SPECIAL[2], pad_token=SPECIAL[0],
        unk_token=SPECIAL[0],
    )  # fmt: skip
    fast.chat_template = CHATML
    return fast


def _without_paths(path: Path) -> None:
    """Where it was made is no part of what it is."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("name_or_path", "local_files_only", "is_local"):
        config.pop(key, None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
