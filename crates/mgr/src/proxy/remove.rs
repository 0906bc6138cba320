//! Deletion of a file's objects.

use super::Objects;
use types::Status;
use wire::native::{GENERATION_GONE, Nothing, ObjectArgs, Procedure, Rights};

impl Objects<'_> {
    /// Deletes every object of a deleted file; a missing object counts as deleted. Fails with `Delay` while an iod is
    /// down, after all other iods have deleted their objects.
    pub(crate) async fn remove(&self) -> Result<(), Status> {
        let remove = |index| async move {
            let link = self.link(index)?;
            let arguments = ObjectArgs { cap: link.capability(self.object(), GENERATION_GONE, Rights::ADMIN) };
            link.call::<Nothing>(Procedure::Remove, &arguments).await
        };
        self.each(remove).await.map(drop)
    }
}
