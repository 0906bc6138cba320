//! The part of a plan that moves the bytes of files to new objects, on the same or other iods.

use super::{Fault, Plan};
use crate::random::Rng;

/// A move of the bytes of one file to new objects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Move {
    /// The file to move, as an index of the permanent files that all clients use.
    pub file: u64,
    /// The numbers of the iods that get the new objects.
    pub iods: Vec<u16>,
}

/// Maximum number of attempts at one move. The simulator repeats a move only if it failed with `Delay`.
pub const TRIES: u32 = 6;

impl Plan {
    /// Adds moves to some plans. In such a plan, each file has objects on some or all of the iods. So the new objects
    /// of a moved file are on some of the same iods, on all of the same iods in another order, or on other iods only.
    pub(super) fn draw_moves(&mut self) {
        let mut rng = Rng::new(self.seed, "moves");
        if !rng.percent(50) {
            return;
        }
        self.stripe_count = rng.between(1, self.iods as u64) as u32;
        let span = 200 + self.busy_ms();
        for _ in 0..rng.between(1, 5) {
            let at = rng.between(20, span);
            self.add_move(at, &mut rng);
        }
        self.moves.sort_by_key(|(at, _)| *at);
    }

    /// Adds moves, each followed by a power loss of all iods, to reveal the bug `Planted::EarlySwap`: the mgr switches
    /// a moved file to its new objects before these objects are durable.
    pub(super) fn focus_on_moves(&mut self, rng: &mut Rng) {
        (self.iods, self.stripe_count, self.inline_max) = (2 + self.iods % 3, 1, 0);
        for round in 0..5 {
            let at = 100 + round * 200 + rng.between(0, 50);
            self.add_move(at, rng);
            let power_cut = at + rng.between(10, 100);
            let down_ms = rng.between(10, 60);
            self.faults.extend((0..self.iods).map(|iod| (power_cut, Fault::Iod { iod, power: true, down_ms })));
        }
        self.quiet_ms = 2500;
    }

    /// Limits the cluster to one or two iods and adds moves. So some moves put a new object on an iod that the file
    /// already uses.
    pub(super) fn focus_on_streams(&mut self, rng: &mut Rng) {
        (self.iods, self.stripe_count, self.inline_max) = (1 + self.iods % 2, 1, 0);
        for round in 0..5 {
            let at = 100 + round * 200 + rng.between(0, 50);
            self.add_move(at, rng);
        }
        self.quiet_ms = 2500;
    }

    /// Adds a move of a random file at the time `at`, in milliseconds after the start.
    pub(super) fn add_move(&mut self, at: u64, rng: &mut Rng) {
        let count = self.stripe_count as usize;
        let first = rng.below(self.iods as u64) as usize;
        let iods = (0..count).map(|n| ((first + n) % self.iods) as u16).collect();
        self.moves.push((at, Move { file: rng.below(self.files), iods }));
    }
}
