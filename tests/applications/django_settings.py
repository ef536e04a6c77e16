"""Django's settings for its own tests: the server of STRATA_APPLICATIONS_PORT, whose default engine is the one under test."""

import os

import pymysql

pymysql.install_as_MySQLdb()


def _database(name: str) -> dict[str, object]:
    return {
        "ENGINE": "django.db.backends.mysql",
        "NAME": name,
        "USER": "root",
        "HOST": "127.0.0.1",
        "PORT": os.environ["STRATA_APPLICATIONS_PORT"],
        "OPTIONS": {"charset": "utf8mb4"},
        "TEST": {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_general_ci"},
    }


DATABASES = {"default": _database("applications"), "other": _database("applications_other")}
SECRET_KEY = "of tests"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
