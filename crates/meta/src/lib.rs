//! The namespace: one file per operation, as closed batches over an ordered key-value engine.

pub mod engine;
pub mod engines;
mod ids;
mod life;
mod namespace;
mod ops;
mod permission;
mod reply;
pub mod schema;
mod tx;

pub use engines::{Embedded, Memory, StoreError};
pub use namespace::{Format, Namespace, OpenError};
pub use permission::Rights;
pub use reply::{
    ChangeInfo, Changed, Created, Doomed, FileInfo, How, Layout, Made, ReadDir, Removed, Renamed, Replaced, SetXattr,
};
pub use schema::merge;
