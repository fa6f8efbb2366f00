"Sphinx configuration of the site; `build.py` prepares its pages."
from configparser import ConfigParser
from pathlib import Path

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

ini = ConfigParser(interpolation=None)
ini.read(Path(__file__).resolve().parents[2]/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']

project, author, copyright, release = cfg['title'], cfg['author'], cfg['copyright'], cfg['version']
extensions = ['myst_nb', 'sphinx.ext.githubpages']
exclude_patterns = ['.doctrees', '.jupyter_cache']
nb_execution_mode = 'off'
nb_code_prompt_show, nb_code_prompt_hide = 'Imports', 'Imports'
nb_merge_streams, nb_render_markdown_format = True, 'myst'
myst_enable_extensions = ['attrs_block', 'attrs_inline', 'colon_fence', 'deflist', 'dollarmath', 'amsmath']
myst_heading_anchors = 3
suppress_warnings = ['myst.header', 'mystnb.unknown_mime_type', 'misc.highlighting_failure']
html_theme = 'furo'
html_title = cfg['title']
html_static_path, html_favicon = ['static'], 'static/icon.svg'
html_css_files, html_js_files = ['style.css'], ['page.js']
html_show_sourcelink, html_copy_source, html_show_sphinx = False, False, False
html_math_renderer = 'mathml'
html_theme_options = dict(
    top_of_page_buttons=[], navigation_with_keys=True,
    light_css_variables={'color-brand-primary': '#0b5cad', 'color-brand-content': '#0b5cad'},
    dark_css_variables={'color-brand-primary': '#7db8f5', 'color-brand-content': '#7db8f5'},
    footer_icons=[dict(name='GitHub', url=cfg['git_url'], html='GitHub', **{'class': ''})])
pygments_style, pygments_dark_style = 'friendly', 'github-dark'


def inline_math(self, node):
    "Math as MathML, which browsers draw by themselves: no script from elsewhere."
    self.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def block_math(self, node):
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app): app.add_html_math_renderer('mathml', (inline_math, None), (block_math, None))
