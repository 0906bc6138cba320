//! DEALLOCATE on the mgr path: turns a range of a file into a hole.

use super::Objects;
use crate::kinds::Stored;
use types::{ByteRange, Status};
use wire::native::{Nothing, Procedure, PunchArgs, Rights};

impl Objects<'_> {
    /// Turns a range of the file into a hole, durably. The size of the file does not change.
    pub(crate) async fn punch(&self, range: ByteRange) -> Result<(), Status> {
        let punch = |index| async move {
            // An object has its bytes in file order, so a range of the file is one range of each object.
            let column = self.column(index);
            let offset = self.distribution.object_size(range.offset, column);
            let len = self.distribution.object_size(range.end(), column) - offset;
            if len == 0 {
                return Ok(Nothing);
            }
            let link = self.link(index)?;
            let arguments = PunchArgs { cap: self.capability(&link, Rights::WRITE), offset, len };
            link.call(Procedure::Punch, &arguments).await
        };
        self.each(punch).await.map(drop)
    }
}
