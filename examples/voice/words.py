"""Words of speech: which phrase of phrases.txt was said, by PocketSphinx, and its intent."""

from pathlib import Path

import numpy as np
from pocketsphinx import Decoder


class Step:
    def __init__(self):
        lines = Path("phrases.txt").read_text().splitlines()
        self.intents = dict(line.split(" = ") for line in lines)
        self.decoder = Decoder(samprate=16000, lm=None, loglevel="FATAL")
        grammar = f"#JSGF V1.0; grammar phrases; public <said> = {' | '.join(self.intents)};"
        self.decoder.add_jsgf_string("phrases", grammar)
        self.decoder.activate_search("phrases")

    def run(self, pcm):
        texts = [self.heard(each) for each in pcm]
        return {"text": texts, "intent": [self.intents.get(text, "unknown") for text in texts]}

    def heard(self, pcm):
        self.decoder.start_utt()
        self.decoder.process_raw(pcm.astype(np.int16).tobytes(), full_utt=True)
        self.decoder.end_utt()
        found = self.decoder.hyp()
        return found.hypstr if found else ""
