// 2048 without an end to patience: a move that changes nothing is ignored.
'use strict'
Kit.play({id: '2048', title: '2048', ...Slide.game(Infinity)})
