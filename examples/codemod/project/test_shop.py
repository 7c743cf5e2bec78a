import unittest

from shop import report, store


class ShopTest(unittest.TestCase):
    def test_users(self):
        self.assertEqual(store.get_users(), ["ada", "grace"])
        self.assertEqual(store.get_users_by_age(50), ["grace"])

    def test_report(self):
        self.assertEqual(report.report(), "ada, grace")
