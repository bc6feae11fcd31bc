-- Whether data matches a form: the subset of JSON Schema in engine/json_schema.py, implemented again for approvals by SQL; a
-- test compares the two. `pattern` is left out because regular expressions differ between languages. Unknown or malformed
-- keywords are ignored.

create or replace function list_in(form jsonb, name text) returns jsonb language sql immutable
return case jsonb_typeof(form -> name) when 'array' then form -> name else '[]' end;

create or replace function number_in(form jsonb, name text) returns numeric language sql immutable
return case jsonb_typeof(form -> name) when 'number' then (form ->> name)::numeric end;

create or replace function is_of_type(value jsonb, type text) returns boolean language sql immutable
return case when jsonb_typeof(value) = 'boolean' or type = 'boolean' then jsonb_typeof(value) = type
            when type = 'integer' then jsonb_typeof(value) = 'number' and (value #>> '{}')::numeric % 1 = 0
            when type in ('object', 'array', 'string', 'null', 'number') then jsonb_typeof(value) = type
            else true end;

-- Checks the bounds of a number, or of the length of a text or a list.
create or replace function within_bounds(value jsonb, form jsonb) returns boolean language sql immutable
return coalesce(case jsonb_typeof(value)
    when 'string' then length(value #>> '{}') >= coalesce(number_in(form, 'minLength'), 0)
                   and length(value #>> '{}') <= coalesce(number_in(form, 'maxLength'), 'infinity')
    when 'array' then jsonb_array_length(value) >= coalesce(number_in(form, 'minItems'), 0)
                  and jsonb_array_length(value) <= coalesce(number_in(form, 'maxItems'), 'infinity')
    when 'number' then (value #>> '{}')::numeric >= coalesce(number_in(form, 'minimum'), '-infinity')
                   and (value #>> '{}')::numeric <= coalesce(number_in(form, 'maximum'), 'infinity')
                   and (value #>> '{}')::numeric > coalesce(number_in(form, 'exclusiveMinimum'), '-infinity')
                   and (value #>> '{}')::numeric < coalesce(number_in(form, 'exclusiveMaximum'), 'infinity')
    end, true);

create or replace function fits_form(data jsonb, form jsonb, root jsonb, depth integer default 0) returns boolean
language plpgsql immutable set search_path from current as $$
declare
    v_types jsonb := case jsonb_typeof(form -> 'type') when 'string' then jsonb_build_array(form -> 'type') else form -> 'type' end;
    v_word  text;
begin
    if jsonb_typeof(form) is distinct from 'object' or depth > 20 then
        return true;
    end if;
    if form ? '$ref' and not fits_form(data, root #> string_to_array(regexp_replace(form ->> '$ref', '^#/', ''), '/'), root, depth + 1)
       or jsonb_typeof(v_types) = 'array'
          and not exists (select from jsonb_array_elements_text(v_types) t where is_of_type(data, t))
       or jsonb_typeof(form -> 'enum') = 'array' and not exists (select from jsonb_array_elements(form -> 'enum') c where c = data)
       or form ? 'const' and form -> 'const' <> data
       or not within_bounds(data, form) then
        return false;
    end if;
    if jsonb_typeof(data) = 'object'
       and (exists (select from jsonb_array_elements_text(list_in(form, 'required')) r where not data ? r)
            or exists (select from jsonb_each(data) f(name, value)
                        where case when form -> 'properties' ? f.name
                                   then not fits_form(f.value, form -> 'properties' -> f.name, root, depth + 1)
                                   else form -> 'additionalProperties' = 'false' end))
       or jsonb_typeof(data) = 'array'
          and exists (select from jsonb_array_elements(data) i where not fits_form(i, form -> 'items', root, depth + 1))
       or exists (select from jsonb_array_elements(list_in(form, 'allOf')) c where not fits_form(data, c, root, depth + 1)) then
        return false;
    end if;
    foreach v_word in array array['anyOf', 'oneOf'] loop
        if list_in(form, v_word) <> '[]'
           and not exists (select from jsonb_array_elements(list_in(form, v_word)) c where fits_form(data, c, root, depth + 1)) then
            return false;
        end if;
    end loop;
    return true;
end $$;
