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
