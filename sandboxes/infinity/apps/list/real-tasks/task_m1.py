import json
from urllib.request import urlopen


def verify(server_url: str) -> tuple[bool, str]:
    items = {o['name']: o['done'] for o in json.load(urlopen(f'{server_url}/api/state'))['items']}
    return items.get('tea') is True, f'tea: {items.get("tea", "not on the list")}'
