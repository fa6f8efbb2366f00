// A switch on pages with exported cells: their source shown or hidden, remembered.
document.addEventListener('DOMContentLoaded', () => {
  const title = document.querySelector('article h1');
  if (!title || !document.querySelector('.cell.tag_exported')) return;
  const button = Object.assign(document.createElement('button'), { className: 'source-switch', type: 'button' });
  const show = (hidden) => {
    document.body.classList.toggle('no-source', hidden);
    button.textContent = hidden ? 'Show source' : 'Hide source';
    localStorage.setItem('uitars-source', hidden ? 'hidden' : 'shown');
  };
  button.addEventListener('click', () => show(!document.body.classList.contains('no-source')));
  show(localStorage.getItem('uitars-source') === 'hidden');
  title.before(button);
});

// Long lines of code, not of what it prints, go on below themselves, further in, so that none is cut off and none looks like a line of its own.
const folded = (pre) => {
  const open = [];   // elements of the highlighter that reach over line ends
  const rows = pre.innerHTML.replace(/\n$/, '').split('\n').map((text) => {
    const before = open.join('');
    for (const tag of text.match(/<\/?span[^>]*>/g) || []) tag[1] === '/' ? open.pop() : open.push(tag);
    const deep = text.replace(/<[^>]*>/g, '').search(/\S|$/) + 4;
    return `<span class="line" style="--deep: ${deep}ch">${before}${text}\n${'</span>'.repeat(open.length)}</span>`;
  });
  pre.innerHTML = rows.join('');
  pre.classList.add('folded-lines');
};
document.addEventListener('DOMContentLoaded', () => document.querySelectorAll('article .highlight pre, .cell_output .text_html pre').forEach((pre) => pre.closest('.cell_output') && !pre.closest('.text_html') || folded(pre)));

// In the navigation, tutorials stand open, and what this page is a part of; the rest unfolds by a click on its name.
document.addEventListener('DOMContentLoaded', () => {
  document.querySelectorAll('.sidebar-tree .caption').forEach((caption) => {
    const list = caption.nextElementSibling;
    if (!list || list.tagName !== 'UL') return;
    caption.classList.add('foldable');
    caption.classList.toggle('folded', caption.textContent.trim() !== 'Tutorials' && !list.querySelector('.current'));
    Object.assign(caption, { tabIndex: 0, role: 'button' });
    const set = () => caption.setAttribute('aria-expanded', !caption.classList.contains('folded'));
    const turn = () => { caption.classList.toggle('folded'); set(); };
    caption.addEventListener('click', turn);
    caption.addEventListener('keydown', (e) => { if (e.key === 'Enter' || e.key === ' ') { e.preventDefault(); turn(); } });
    set();
  });
});
