//! The one command door of the project.
fn main() {}
