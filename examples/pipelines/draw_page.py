"""Draw a page with lines of text, one of them upside down (page.png, turned.png), and a large one."""

from PIL import Image, ImageDraw, ImageFont

LINES = ("Total 41,95 EUR", "Invoice 2026-11-30", "Serial A7-993-XK", "hello world")
FONT = ImageFont.load_default(28)


def draw(width: int, height: int, places: list[tuple[int, int]], name: str) -> None:
    """Write a page with a line at each place."""
    page = Image.new("RGB", (width, height), (222, 222, 222))
    for text, place in zip(LINES, places, strict=False):
        line = Image.new("RGB", (320, 44), (222, 222, 222))
        ImageDraw.Draw(line).text((8, 4), text, (20, 20, 20), FONT)
        page.paste(line.rotate(180) if text == LINES[-1] else line, place)
    page.save(name)


draw(640, 360, [(20, 20), (20, 100), (20, 180), (300, 280)], "page.png")
draw(3000, 2000, [(40, 40), (2600, 300), (600, 640), (1500, 1800)], "large.png")
Image.open("page.png").rotate(180).save("turned.png")
