//! The shape of the house, checked: arrows between crates, heads and lengths of files, shelves, fuzz targets, links.

#[path = "tidy/arrows.rs"]
mod arrows;
#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/doors.rs"]
mod doors;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/fuzzing.rs"]
mod fuzzing;
#[path = "tidy/links.rs"]
mod links;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/shelves.rs"]
mod shelves;
#[path = "tidy/tree.rs"]
mod tree;
