//! Parts of the `stripe` benchmark, one file for each part.

pub mod names;
pub mod scaling;
pub mod small;
pub mod stream;
