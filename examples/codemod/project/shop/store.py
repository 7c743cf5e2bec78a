USERS = {"ada": 36, "grace": 85}


def get_users():
    return sorted(USERS)


def get_users_by_age(age):
    return [name for name in get_users() if USERS[name] >= age]
