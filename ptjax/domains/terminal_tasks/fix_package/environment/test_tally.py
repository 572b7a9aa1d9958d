import unittest

import tally


class Test(unittest.TestCase):
  def test_minutes(self):
    self.assertEqual(tally.minutes("7:30"), 450)
    self.assertEqual(tally.minutes("45"), 45)
    self.assertRaises(ValueError, tally.minutes, "7:60")

  def test_by_person(self):
    self.assertEqual(tally.by_person([("ada", "1:00"), ("bob", "30")]), {"ada": 60, "bob": 30})

  def test_by_person_again(self):
    self.assertEqual(tally.by_person([("ada", "1:00")]), {"ada": 60})

  def test_overtime(self):
    self.assertEqual(tally.overtime([("ada", "41:00"), ("bob", "40:00")], "40:00"), {"ada": 60})


if __name__ == "__main__":
  unittest.main()
