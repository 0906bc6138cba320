//! The experiments.

pub mod small;
