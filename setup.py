"All metadata and requirements come from settings.ini."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
ini = ConfigParser(interpolation=None)
ini.read(here / 'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']

extras = {k.removesuffix('_requirements'): v.split() for k, v in cfg.items() if k.endswith('_requirements')}
extras['dev'] = [*extras['dev'], *extras['train']]
readme = here / 'README.md'

setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'], keywords=cfg['keywords'].split(),
    author=cfg['author'], author_email=cfg['author_email'], license='Apache-2.0', url=cfg['git_url'],
    long_description=readme.read_text(encoding='utf-8') if readme.exists() else '', long_description_content_type='text/markdown',
    packages=find_packages(include=[cfg['lib_name'], cfg['lib_name'] + '.*']), package_data={cfg['lib_name']: ['checkpoints/**/*']},
    python_requires='>=' + cfg['min_python'], install_requires=cfg['requirements'].split(), extras_require=extras,
    entry_points={'console_scripts': cfg['console_scripts'].split(), 'nbdev': [f'{cfg["lib_name"]}={cfg["lib_name"]}._modidx:d']},
    classifiers=['Programming Language :: Python :: 3', 'Intended Audience :: ' + cfg['audience']],
)
