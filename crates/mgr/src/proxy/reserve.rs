//! ALLOCATE on the mgr path: reserves space on the iods for a range of a file.

use super::Objects;
use crate::kinds::Stored;
use types::{ByteRange, Status};
use wire::native::{Nothing, Procedure, ReserveArgs, Rights};

impl Objects<'_> {
    /// Reserves space for a range of the file in every object of all copies, durably. Each object grows to the end of
    /// the space that is reserved in it.
    ///
    /// Reserves nothing while an iod is down (`Delay`). If an iod has no space (`NoSpc`) or does not support
    /// reservations (`NotSupp`), other iods may have reserved space already.
    pub(crate) async fn reserve(&self, range: ByteRange) -> Result<(), Status> {
        self.all_up()?;
        let reserve = |index| async move {
            // An object has its bytes in file order, so a range of the file is one range of each object.
            let column = self.column(index);
            let offset = self.distribution.object_size(range.offset, column);
            let len = self.distribution.object_size(range.end(), column) - offset;
            if len == 0 {
                return Ok(Nothing);
            }
            let link = self.link(index)?;
            let arguments = ReserveArgs { cap: self.capability(&link, Rights::WRITE), offset, len };
            link.call(Procedure::Reserve, &arguments).await
        };
        self.each(reserve).await.map(drop)
    }
}
