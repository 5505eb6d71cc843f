-- For pandoc: a book may show pictures from its own directory and from nowhere else.
--
-- Without this a book that says ![](/etc/passwd) gets that file packed into its EPUB, and ![](http://…) makes the
-- converter call out from inside your network. Such a picture becomes its own description.

local function is_inside(source)
  return not source:match("^[/\\]")       -- an absolute path
    and not source:match("^%a[%w+.-]*:")  -- file:, http:, data:
    and not ("/" .. source:gsub("%%2[eE]", "."):gsub("%%2[fF]", "/") .. "/"):match("[/\\]%.%.[/\\]")
    and not source:match("^%%2[fF]")
end

-- `[a word]{src=/etc/passwd}` names a file too: with --self-contained pandoc packs whatever `src`, `data-src` and some
-- others name, on any element. So nothing but these attributes stays; identifiers and classes are none of them.
local harmless = { width = true, height = true, lang = true, dir = true, start = true, startFrom = true }

local function without_sources(element)
  local names = {}
  for name in pairs(element.attributes or {}) do
    if not harmless[name] then
      table.insert(names, name)
    end
  end
  for _, name in ipairs(names) do
    io.stderr:write("attribute left out: " .. name .. "\n")
    element.attributes[name] = nil
  end
  return element
end

Block = without_sources
Inline = without_sources

function Image(image)
  if not is_inside(image.src) then
    io.stderr:write("picture left out, it is not in the directory of the books: " .. image.src .. "\n")
    return image.caption
  end
  return without_sources(image)
end
