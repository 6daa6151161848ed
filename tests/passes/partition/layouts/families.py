"""Every family of the zoo cut to a few narrow layers: what the search is compared with the full integer programme on."""

from __future__ import annotations

_NARROW = "hidden=64,heads=8,vocab=128,seq=16,batch=8"
FAMILIES = {
    "bert": f"zoo:bert-base,layers={{layers}},{_NARROW}",
    "gpt2": f"zoo:gpt2,layers={{layers}},{_NARROW}",
    "gpt3": f"zoo:gpt3-175b,layers={{layers}},weights=random,{_NARROW}",
    "llama-7b": f"zoo:llama-7b,layers={{layers}},{_NARROW}",
    "llama-70b": f"zoo:llama-70b,layers={{layers}},kv_heads=4,{_NARROW}",
    "mixtral": f"zoo:mixtral-8x7b,layers={{layers}},kv_heads=4,{_NARROW}",
    "mlp": "zoo:mlp,layers={layers},batch=8,inputs=64,hidden=64,outputs=64",
    "resnet": "zoo:resnet50",
    "t5": f"zoo:t5-base,layers={{layers}},{_NARROW}",
    "vit": "zoo:vit-base,layers={layers},hidden=64,heads=8,image=32,patch=8,classes=16,batch=8",
}
MESHES = ((8,), (2, 4), (8, 8))


def layers_of(family: str, depths: tuple[int, ...]) -> tuple[int, ...]:
    """The depths of a family; a ResNet has one."""
    return depths if "{layers}" in FAMILIES[family] else depths[:1]


def spec_of(family: str, layers: int) -> str:
    return FAMILIES[family].format(layers=layers)


__all__ = ["FAMILIES", "MESHES", "layers_of", "spec_of"]
