"""Device profiles on disk: every *.toml of one folder."""

from __future__ import annotations

from pathlib import Path

import gateway
from gateway.common.domain.errors import ConfigurationError
from gateway.common.domain.profile import Profile, read_profile

PROFILE_LIMIT_BYTES = 256 * 1024


def profiles_folder() -> Path:
    """Return the folder of an installed wheel, else device_profiles/ next to the package in a checkout."""
    package = Path(gateway.__file__).parent
    installed = package / "_share" / "device_profiles"
    return installed if installed.is_dir() else package.parent / "device_profiles"


def load_profiles(folder: Path) -> tuple[Profile, ...]:
    """Return all profiles of `folder`, in the order of their file names.

    Raises ConfigurationError: no folder, a file that cannot be read or parsed, a name used twice.
    """
    files = sorted(_names(folder))
    profiles: dict[str, Profile] = {}
    for file in files:
        profile = read_profile(_text(file), str(file))
        if profile.name in profiles:
            raise ConfigurationError(
                f"a second profile called {profile.name!r}; names must differ", file=str(file), key="name"
            )
        profiles[profile.name] = profile
    return tuple(profiles.values())


def _names(folder: Path) -> list[Path]:
    try:
        return [file for file in folder.iterdir() if file.suffix == ".toml"]
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror}; name a folder of device profiles that the gateway's user may read",
            file=str(folder),
        ) from None


def _text(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            content = stream.read(PROFILE_LIMIT_BYTES + 1)
        if len(content) > PROFILE_LIMIT_BYTES:
            raise ConfigurationError(f"longer than {PROFILE_LIMIT_BYTES} bytes; shorten it", file=str(file))
        return content.decode()
    except OSError as error:
        raise ConfigurationError(
            f"cannot be read: {error.strerror}; check it and its permission", file=str(file)
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"is not UTF-8 at byte {error.start}; save it as UTF-8", file=str(file)) from None
