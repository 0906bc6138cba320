//! LENGTHS: questions of an iod to the mgr about file lengths. The iod asks when a client of the files layout reads
//! past the end of an object.

use types::ObjectId;
use xdr::{Malformed, Reader, Writer, Xdr};

use super::{Capability, LENGTHS_MAX, put_object, take_object};

/// Arguments of LENGTHS.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LengthsArgs {
    /// Capability for the whole store ([`super::STORE_OBJECT`]); needs the right ADMIN.
    pub cap: Capability,
    /// The mgr's answers to questions in earlier LENGTHS replies.
    pub answers: Vec<Length>,
}

impl Xdr for LengthsArgs {
    fn encode(&self, out: &mut Writer) {
        self.cap.encode(out);
        out.array(&self.answers, |out, answer| answer.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthsArgs { cap: Capability::decode(input)?, answers: input.array(LENGTHS_MAX, Length::decode)? })
    }
}

/// The mgr's answer to one question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Length {
    /// Number of the question to which this is the answer.
    pub number: u64,
    /// The length of the file and the size that the object must have at least, as they were at some moment after the
    /// mgr had received the question. `None` if the mgr cannot determine them without a request to an iod.
    pub length: Option<FileLength>,
}

/// The length of a file, and the size that one of its objects must have at least.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FileLength {
    /// Length of the file in bytes.
    pub file: u64,
    /// Size in bytes that the file's object must have at least, on the iod that sent the question. A shorter object
    /// has lost bytes.
    pub least: u64,
}

impl Xdr for Length {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        out.optional(self.length.as_ref(), |out, length| {
            out.u64(length.file);
            out.u64(length.least);
        });
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        let number = input.u64()?;
        let length = input.optional(|input| Ok(FileLength { file: input.u64()?, least: input.u64()? }))?;
        Ok(Length { number, length })
    }
}

/// Result of LENGTHS. If the iod has no question for some time, it sends a reply without questions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LengthsReply {
    /// Questions that the mgr must answer with its next LENGTHS.
    pub asked: Vec<LengthQuestion>,
}

impl Xdr for LengthsReply {
    fn encode(&self, out: &mut Writer) {
        out.array(&self.asked, |out, question| question.encode(out));
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthsReply { asked: input.array(LENGTHS_MAX, LengthQuestion::decode)? })
    }
}

/// The question of an iod: how long is the file of this object?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LengthQuestion {
    /// Number of the question. The iod uses each number only once before it restarts.
    pub number: u64,
    /// The object whose file length the iod needs.
    pub object: ObjectId,
}

impl Xdr for LengthQuestion {
    fn encode(&self, out: &mut Writer) {
        out.u64(self.number);
        put_object(out, self.object);
    }

    fn decode(input: &mut Reader) -> Result<Self, Malformed> {
        Ok(LengthQuestion { number: input.u64()?, object: take_object(input)? })
    }
}
