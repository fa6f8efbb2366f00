// 2048 as LMGame-Bench plays it: an illegal move costs a step and changes nothing, and ten of these in a row end the
// game. LMGame-Bench shows 10 log2 of the score.
'use strict'
Kit.play({id: 'lm-2048', title: '2048 (LMGame-Bench)', ...Slide.game(10)})
