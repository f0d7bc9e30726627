"""Bundles on disk for the tests of everything that reads them."""

from pathlib import Path


def skill_md(name: str, body: str = "Do it.\n", frontmatter: str = "") -> str:
    """Return a valid SKILL.md with more `frontmatter` lines, each ended by a line feed."""
    return f"---\nname: {name.rpartition('/')[2]}\ndescription: Does {name}.\n{frontmatter}---\n\n{body}"


def write_skill(bundle: Path, name: str, text: str | None = None) -> Path:
    """Write a skill into `bundle`, a valid one unless `text` says otherwise; return its folder."""
    folder = bundle / "skills" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "SKILL.md").write_text(skill_md(name) if text is None else text)
    return folder


def write_bundle(root: Path, *skills: str, name: str = "core", agents: str = "") -> Path:
    """Write a bundle with valid skills; return `root`."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "bundle.yaml").write_text(f"name: {name}\nversion: 1.10\ndescription: A bundle.\n{agents}")
    (root / "skills").mkdir(exist_ok=True)
    for skill in skills:
        write_skill(root, skill)
    return root
