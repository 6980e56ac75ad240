"""Systems on chip by the signs that are left where a container hides the device tree."""

from __future__ import annotations

import re

CHIPS = {
    "nvidia,tegra210": ("jetson-nano", "tegra 33", "tegra210", "nvidia,gm20b", "57000000.gm20b", "nvidia d07"),
    "nvidia,tegra186": ("jetson-tx2", "tegra 24", "tegra186", "nvidia,gp10b", "17000000.gp10b", "nvidia 003"),
    "nvidia,tegra194": ("jetson-xavier", "tegra 25", "tegra194", "nvidia,gv11b", "17000000.gv11b", "nvidia 004"),
    "nvidia,tegra234": ("jetson-orin", "tegra 35", "tegra234", "nvidia,ga10b", "17000000.ga10b", "nvidia d42"),
    "nvidia,tegra264": ("jetson-thor", "tegra 38", "tegra264", "nvidia,gb10b", "nvidia d83"),
    "brcm,bcm2837": ("raspberry-pi-3", "raspberry pi 3", "raspberry pi compute module 3", "raspberry pi zero 2"),
    "brcm,bcm2711": ("raspberry-pi-4", "raspberry pi 4", "raspberry pi compute module 4"),
    "brcm,bcm2712": ("raspberry-pi-5", "raspberry pi 5", "raspberry pi compute module 5"),
    "rockchip,rk3588": ("rockchip-rk3588", "rockchip,rk3588", "fdab0000.npu", "rockchip d05+d0b"),
    "rockchip,rk3576": ("rockchip-rk3576", "rockchip,rk3576", "27700000.npu"),
    "rockchip,rk3562": ("rockchip-rk3562", "rockchip,rk3562", "ff300000.npu"),
    "rockchip,rk3568": ("rockchip-rk3568", "rockchip,rk356", "fde40000.npu", "rockchip d05"),
}
"""A board's name in settings, then beginnings of facts that only boards with this chip have, by its `compatible`.

Facts, in lower case: family and number of /sys/devices/soc0, the model in cpuinfo, `compatible` of a platform device,
name in devfreq, or the maker by a node of its driver with the part numbers in cpuinfo.
"""
BOARDS = {signs[0]: chip for chip, signs in CHIPS.items()}
QUALCOMM = re.compile(r"(?:qc[ms]|s[acm])[0-9]{3,4}[a-z]{0,2}")
"""Machine of /sys/devices/soc0 on a Qualcomm chip, which is its name in `compatible`, too."""


def chip_by_fact(fact: str) -> str | None:
    """Return the `compatible` of the chip that this fact (lower case) is a sign of, or None."""
    if QUALCOMM.fullmatch(fact):
        return f"qcom,{fact}"
    return next((chip for chip, signs in CHIPS.items() if fact.startswith(signs)), None)
