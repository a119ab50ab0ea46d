"""Protobuf files that schemas in Confluent's registry import without a reference.

Source: the definitions that confluent-kafka and googleapis-common-protos have compiled.
"""

from __future__ import annotations

from collections.abc import Mapping

_OPTIONS = ("File", "Message", "Field", "Enum", "EnumValue")
_NAMES = ("file_meta", "message_meta", "field_meta", "enum_meta", "enum_value_meta")
_EXTENSIONS = "\n".join(
    f"extend google.protobuf.{options}Options {{ Meta {name} = 1088; }}"
    for options, name in zip(_OPTIONS, _NAMES, strict=True)
)

BUNDLED: Mapping[str, str] = {
    "confluent/meta.proto": f"""syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {{
  string doc = 1; map<string, string> params = 2; repeated string tags = 3; repeated Rule rules = 4;
}}
message Rule {{ string name = 1; string doc = 2; string expr = 3; string sql = 4; }}
{_EXTENSIONS}
""",
    "confluent/type/decimal.proto": """syntax = "proto3";
package confluent.type;
message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
""",
    "google/type/date.proto": """syntax = "proto3";
package google.type;
message Date { int32 year = 1; int32 month = 2; int32 day = 3; }
""",
    "google/type/timeofday.proto": """syntax = "proto3";
package google.type;
message TimeOfDay { int32 hours = 1; int32 minutes = 2; int32 seconds = 3; int32 nanos = 4; }
""",
}
