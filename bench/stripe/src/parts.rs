//! The experiments.

pub mod names;
pub mod scaling;
pub mod small;
pub mod stream;
