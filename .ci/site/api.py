"API cards of an exported cell, read from its source alone: docstrings, docments, fields, methods."
import ast
import io
import tokenize

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def comments(source):
    "Line number -> the comment on that line."
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0]: t.string.lstrip('# ').strip() for t in tokens if t.type == tokenize.COMMENT}


def code(node, source=''):
    "A piece of syntax, as written in `source`, as inline code that may stand in a table."
    text = node if isinstance(node, str) else ast.get_source_segment(source, node) if node is not None else ''
    return '`' + ' '.join(text.split()).replace('|', '\\|') + '`' if text else ''


def kind_of(node):
    "The type of a field or parameter; the one inside `Annotated[...]`."
    marked = isinstance(node, ast.Subscript) and ast.unparse(node.value) == 'Annotated'
    return node.slice.elts[0] if marked else node


def table(head, rows):
    "A Markdown table without its empty columns; nothing without rows."
    keep = [i for i in range(len(head)) if i == 0 or any(r[i] for r in rows)]
    line = lambda cells: '| ' + ' | '.join(cells[i] for i in keep) + ' |'
    return [line(head), '|' + '---|' * len(keep), *map(line, rows)] if rows else []


def cell_text(text): return text.replace('|', '\\|').replace('\n', ' ')


def parameters(func, notes, source):
    "Rows name, type, default, what; the return value last."
    a = func.args
    positional = [*a.posonlyargs, *a.args]
    defaults = [None] * (len(positional) - len(a.defaults)) + a.defaults
    named = [*zip(positional, defaults)]
    if a.vararg: named.append((a.vararg, None))
    named += zip(a.kwonlyargs, a.kw_defaults)
    if a.kwarg: named.append((a.kwarg, None))
    star = {a.vararg: '*', a.kwarg: '**'}
    rows = [(code(star.get(p, '') + p.arg), code(kind_of(p.annotation), source), code(d, source), cell_text(notes.get(p.end_lineno, '')))
            for p, d in named if p.arg not in ('self', 'cls')]
    last = func.returns and notes.get(func.returns.end_lineno, '')
    return rows + ([('*returns*', code(func.returns, source), '', cell_text(last))] if func.returns else [])


def fields(cls, notes, source):
    "Rows of a dataclass's or protocol's fields, or an enum's members."
    rows = []
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and not node.target.id.startswith('_'): name, kind, value = node.target, kind_of(node.annotation), node.value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name): name, kind, value = node.targets[0], None, node.value
        else: continue
        rows.append((code(name.id), code(kind, source), code(value, source), cell_text(notes.get(node.end_lineno, ''))))
    return rows


def signature(func):
    "A method's call as its user writes it."
    args = [a.arg for a in [*func.args.posonlyargs, *func.args.args, *func.args.kwonlyargs] if a.arg not in ('self', 'cls')]
    is_property = any(ast.unparse(d) in ('property', 'cached_property', 'functools.cached_property') for d in func.decorator_list)
    return func.name if is_property else ('await ' if isinstance(func, ast.AsyncFunctionDef) else '') + f'{func.name}({", ".join(args)})'


def methods(cls, notes, source):
    "Rows of the public methods that say what they do."
    rows = []
    for node in cls.body:
        if not isinstance(node, FUNCTIONS) or node.name.startswith('_') or not ast.get_docstring(node): continue
        told = [f'{name} {what}' for name, _, _, what in parameters(node, notes, source) if what and name != '*returns*']
        rows.append((code(signature(node)), cell_text(' '.join([ast.get_docstring(node), *(f'<br>{o}' for o in told)]))))
    return rows


def init(cls): return next((n for n in cls.body if isinstance(n, FUNCTIONS) and n.name == '__init__'), None)


def function_card(func, *where): return table(['name', 'type', 'default', 'what'], parameters(func, *where))


def class_card(cls, *where):
    head = ['member', 'type', 'value', 'what'] if any('Enum' in ast.unparse(b) for b in cls.bases) else ['field', 'type', 'default', 'what']
    start = function_card(init(cls), *where) if init(cls) else table(head, fields(cls, *where))
    return [*start, '', *table(['method', 'what'], methods(cls, *where))]


def kind(node):
    if isinstance(node, ast.ClassDef): return 'class'
    return 'async function' if isinstance(node, ast.AsyncFunctionDef) else 'function'


def is_patch(node): return any(ast.unparse(d).startswith('patch') for d in node.decorator_list)


def name_of(node):
    "The name a reader looks for: of a patched method, with its class."
    if isinstance(node, FUNCTIONS) and is_patch(node): return f'{ast.unparse(node.args.args[0].annotation)}.{node.name}'
    return node.name


def definitions(source):
    "Public functions and classes of a cell."
    try: body = ast.parse(source).body
    except SyntaxError: return []
    return [n for n in body if isinstance(n, (ast.ClassDef, *FUNCTIONS)) and not n.name.startswith('_')]


def only_imports(source):
    "Whether a cell does nothing but import."
    try: return all(isinstance(n, (ast.Import, ast.ImportFrom)) for n in ast.parse(source).body)
    except SyntaxError: return False


def anchor(node, module):
    "The place of a card; unlike names, places do not tell `Figure` from `figure`."
    return f'{module}.{"class." if isinstance(node, ast.ClassDef) else ""}{name_of(node)}'.lower()


def cards(source, module):
    "One card for each public definition of an exported cell, in Markdown."
    notes, out = comments(source), []
    for node in definitions(source):
        name = name_of(node)
        body = (class_card if isinstance(node, ast.ClassDef) else function_card)(node, notes, source)
        out += [f'({anchor(node, module)})=', f'### {name}', '', f'{{.api-doc}}\n*{kind(node)}* {ast.get_docstring(node) or ""}', '', *body, '']
    return '\n'.join(out)
