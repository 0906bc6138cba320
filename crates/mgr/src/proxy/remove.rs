//! Deletion of a file's objects from their iods.

use super::Objects;
use types::Status;
use wire::native::{GENERATION_GONE, Nothing, ObjectArgs, Procedure, Rights};

impl Objects<'_> {
    /// Deletes every object of a deleted file. A missing object counts as deleted. While an iod is down, deletes the
    /// objects on the other iods and fails with `Delay`.
    pub(crate) async fn remove(&self) -> Result<(), Status> {
        let remove = |index| async move {
            let link = self.link(index)?;
            let arguments = ObjectArgs { cap: link.capability(self.object(), GENERATION_GONE, Rights::ADMIN) };
            link.call::<Nothing>(Procedure::Remove, &arguments).await
        };
        self.each(remove).await.map(drop)
    }
}
