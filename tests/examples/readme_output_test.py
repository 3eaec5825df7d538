"""What scripts/readme_output.py takes for the same output, and what not."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import readme_output as r  # noqa: E402

STEP_1 = "step 1/480 | loss 6.270 | norm 5.11 | lr 3.0e-4 | 276 ms | 7.43k tok/s | mem 93.4 MiB | ETA 2m"
STEP_60 = "step 60/480 | loss 1.441 | norm 0.56 | lr 5.9e-3 | 59 ms | 34.5k tok/s | mem 97.7 MiB | ETA 28s"


def elsewhere(shown, actual):
    return r.same_line(shown, actual, exactly=False)


def there(shown, actual):
    return r.same_line(shown, actual, exactly=True)


class Lines(unittest.TestCase):
    def test_differ_in_times_and_memory_of_the_process(self):
        other = STEP_1.replace("276 ms", "1.5 s").replace("7.43k", "760").replace("93.4", "1.4").replace("2m", "22m")
        self.assertTrue(there(STEP_1, other))
        self.assertTrue(there("x: 512 tokens in 0.0s", "x: 512 tokens in 1m02s"))
        self.assertTrue(there("step 9: checkpoint durable in 0.0s (9.8 MiB): d", "step 9: checkpoint durable in 2.5s (9.8 MiB): d"))
        self.assertTrue(there("36 tokens, 2065 tokens/s", "36 tokens, 99 tokens/s"))

    def test_do_not_differ_in_anything_else(self):
        for a, b in [("60/480", "60/481"), ("5.9e-3", "5.8e-3"), ("| norm", "| form")]:
            self.assertFalse(elsewhere(STEP_60, STEP_60.replace(a, b)), a)
        self.assertFalse(elsewhere("64.4 MiB predicted", "64.5 MiB predicted"))
        self.assertFalse(elsewhere("x (9.8 MiB): d", "x (9.9 MiB): d"))

    def test_have_the_losses_of_the_recorded_processor_to_the_digit(self):
        self.assertFalse(there(STEP_60, STEP_60.replace("1.441", "1.442")))
        self.assertFalse(there("Today Mira sleeps.", "Today Hugo sleeps."))

    def test_have_losses_near_those_of_another_processor(self):
        self.assertTrue(elsewhere(STEP_1, STEP_1.replace("6.270", "6.271")))
        self.assertFalse(elsewhere(STEP_1, STEP_1.replace("6.270", "6.280")))
        self.assertTrue(elsewhere(STEP_60, STEP_60.replace("1.441", "1.40").replace("0.56", "0.8")))
        self.assertFalse(elsewhere(STEP_60, STEP_60.replace("1.441", "1.30")))
        self.assertFalse(elsewhere("one rank    loss 6.256467", "one rank    loss 6.356467"))
        self.assertTrue(elsewhere("step 240 sample: Today Mira", "step 240 sample: Today Hugo"))
        self.assertFalse(elsewhere("step 240 sample: Today Mira", "step 241 sample: Today Mira"))

    def test_have_errors_of_any_size_and_limits_of_the_same(self):
        self.assertTrue(elsewhere("ok  logits  4.42e-07  (at most 1e-05)", "ok  logits  1.1e-06  (at most 1e-05)"))
        self.assertFalse(elsewhere("ok  logits  4.42e-07  (at most 1e-05)", "ok  logits  4.42e-07  (at most 1e-04)"))
        self.assertFalse(elsewhere("ok   logits", "bad  logits"))


class Outputs(unittest.TestCase):
    def same(self, shown, actual, is_part=False):
        return r.same_output(shown, actual, is_part, exactly=True)

    def test_are_whole_unless_dots_or_the_marker_say_otherwise(self):
        self.assertTrue(self.same(["a", "b"], ["a", "b"]))
        self.assertFalse(self.same(["a"], ["a", "b"]))
        self.assertFalse(self.same(["a", "b"], ["a"]))
        self.assertTrue(self.same(["b"], ["a", "b", "c"], is_part=True))
        self.assertTrue(self.same(["...", "b", "..."], ["a", "b", "c"]))
        self.assertFalse(self.same(["...", "b"], ["a", "b", "c"]))
        self.assertFalse(self.same(["a", "...", "c", "..."], ["b", "a", "c"]))
        self.assertFalse(self.same(["...", "c", "...", "b", "..."], ["a", "b", "c"]))

    def test_are_written_anew_with_the_parts_that_were_shown(self):
        printed = ["x", "loss 2", "rank 3: 4 MiB", "y"]
        self.assertEqual(r.new_output(["a"], printed, False), printed)
        self.assertEqual(r.new_output(["...", "rank 1: 9 MiB", "..."], printed, False), ["...", "rank 3: 4 MiB", "..."])
        self.assertIsNone(r.new_output(["...", "gone", "..."], printed, False))


class Blocks(unittest.TestCase):
    def test_are_those_after_a_marker(self):
        text = "\n".join(["```", "not this", "```", "<!-- output of: heddle x --a 1 -->", "```", "1", "```",
                          "<!-- part of the output of: heddle y -->", "", "```", "2", "```",
                          "<!-- output of scripts/demo.sh on A, AVX2 -->", "```", "$ 3", "4", "```"])
        blocks, _ = r.blocks_of(text)
        self.assertEqual([(b.source, b.part, b.processor, b.lines) for b in blocks],
                         [("heddle x --a 1", False, None, ["1"]), ("heddle y", True, None, ["2"]),
                          ("scripts/demo.sh", False, "A, AVX2", ["$ 3", "4"])])

    def test_are_in_every_file_that_is_looked_at(self):
        root = Path(__file__).resolve().parents[2]
        self.assertEqual([len(r.blocks_of((root / name).read_text())[0]) for name in r.FILES],
                         [3, 1, 1, 2, 1, 3, 1, 1, 0, 7])


if __name__ == "__main__":
    unittest.main()
